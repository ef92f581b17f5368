"""What is known of operators: each fact in one table, under the operator's full name."""
