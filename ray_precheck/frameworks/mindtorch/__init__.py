"""MSAdapter (MindTorch) under test."""
