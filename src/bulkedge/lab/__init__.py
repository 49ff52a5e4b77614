"""Everything that runs experiments: studies, sweeps, their gallery, the explorer. The library never imports it."""
