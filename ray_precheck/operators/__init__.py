"""The facts about operators: each kind of fact in one table, by the operator's full name."""
