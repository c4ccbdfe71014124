"""Providers of chats and of fine-tuning: one file for each kind of service, behind two small interfaces."""
