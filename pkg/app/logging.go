package app

import (
	"io"
	"log/slog"
)

var logLevelNames = []string{"debug", "info", "warn", "error"}

var logLevels = map[string]slog.Level{
	"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
}

// newLogger makes the logger that a validated Config asks for.
func newLogger(c Config, w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: logLevels[c.LogLevel]}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
