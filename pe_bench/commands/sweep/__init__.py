"""Many runs from one command: a process for each job, their progress, their summary."""
