"""A simulator of training clusters that runs the schedules, engine and policies of kfcore."""
