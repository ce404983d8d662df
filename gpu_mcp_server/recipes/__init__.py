"""What reads agent_recipes: the texts of roles and procedures, served as prompts and used by headless runs."""
