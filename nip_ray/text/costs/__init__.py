"""What calls and jobs cost, and the limits that they are held to."""
