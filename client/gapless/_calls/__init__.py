"""What each call sends and how its answer is read, a module a noun. Nothing here waits."""
