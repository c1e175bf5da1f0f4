"""Bills of topics, cost simulation, and advice that lowers costs."""
