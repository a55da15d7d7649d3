"""The suites that `overhead` starts processes of: nothing is timed in them, so all that such a process takes is the harness's."""
