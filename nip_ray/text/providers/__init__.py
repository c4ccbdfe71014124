"""Providers of chats and of fine-tuning: one file per kind of service, behind two small interfaces."""
