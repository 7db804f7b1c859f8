"""One public function for each thing a user can ask; every edge (CLI, API, web) calls these."""
