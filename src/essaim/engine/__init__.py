"""The durable engine: carries runs of workflows through their steps, whatever happens meanwhile."""
