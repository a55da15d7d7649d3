"""What is kept: the words (`record`), the store, the statistics and the verdicts, reports and the gate."""
