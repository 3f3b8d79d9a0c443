"""The words of gates, comparisons, bisections and power."""
