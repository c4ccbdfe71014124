"""Ray and the machine: starting or joining it, what a run asks of it, ending in order, who hangs, the doctor."""
