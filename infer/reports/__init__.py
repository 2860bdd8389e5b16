"""Results as people and programs read them: tables, sentences and JSON documents."""
