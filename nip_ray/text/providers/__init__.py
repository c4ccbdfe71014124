"""Who answers and who fine-tunes: one file for each kind of service, behind two small interfaces."""
