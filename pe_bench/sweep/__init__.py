"""Many runs from one command: a process for each job, how they stand, how they ended."""
