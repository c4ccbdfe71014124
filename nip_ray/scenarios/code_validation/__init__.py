"""Code validation: is a program a correct solution of a problem?"""
