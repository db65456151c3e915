"""Pictures and pages about what was found."""
