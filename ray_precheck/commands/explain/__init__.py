"""The facts about one operator, put together for `ray-precheck explain`."""
