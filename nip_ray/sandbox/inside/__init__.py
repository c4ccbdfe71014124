"""Files that a bare interpreter runs beside or inside the sandbox: the standard library only, nothing of nip_ray."""
