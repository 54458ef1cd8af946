"""The run log: events, the journal that keeps them, and the RunResult they fold into."""
