"""Ray and the machine: starting or joining Ray, required resources, orderly shutdown, hang detection, the doctor."""
