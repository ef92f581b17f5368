"""The precheck as a job: what it is about, what it has to do, and the files that its calls need."""
