"""Run-time forecasts: histograms of past runs, blended with gradient boosting on facts known at submission."""
