"""What tools do, once, over any host."""
