"""Files that run inside of the sandbox, by a bare `python -I -S -B`: the standard library only, and nothing of nip_ray."""
