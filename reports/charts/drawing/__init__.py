"""What every chart is drawn with: look, labels, axes, SVG and tips."""
