"""Workers that run one program each: joining, agreeing, and who was lost."""
