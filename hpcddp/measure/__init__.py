"""What is measured with torch on the machine itself: collectives, modes of training."""
