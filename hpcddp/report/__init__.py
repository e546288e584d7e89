"""Pages from reports that lie in a run directory. Measures nothing and needs no network."""
