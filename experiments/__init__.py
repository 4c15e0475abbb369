"""The questions this project answers with measurements; one folder each."""
