"""The suites that `overhead` starts processes of. Their steps do nothing: all that such a process takes is the harness's."""
