"""What is known of one operator, put together for `ray-precheck explain`."""
