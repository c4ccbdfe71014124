"""Files that a bare interpreter runs beside or inside the sandbox: the standard library only, and nothing of
nip_ray."""
