"""What all experiments share: finding them, recording runs, statistics, figure style."""
