"""The rooms of Draftmill, one package a stage; each defines the record that it makes."""
