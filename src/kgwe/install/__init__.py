"""Installation with Helm: the generated files of the charts, and the commands of Helm."""
