"""Files that a bare interpreter runs beside or inside of the sandbox: the standard library only, and nothing of
nip_ray."""
