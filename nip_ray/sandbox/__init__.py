"""Running untrusted programs. `nip_ray.sandbox.run` says what is covered and what is not."""
