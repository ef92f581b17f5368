"""A Python script that shows the failure of one saved API, without ray_precheck."""
