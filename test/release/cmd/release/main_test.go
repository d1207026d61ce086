package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What image makes is tested where it is made; here is what people get to read.
func TestRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "CHANGELOG.md"), []byte("## 0.1.0\n- First.\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		args    []string
		wantErr string // part of the error; "" for none
		wantOut string // start of what is printed
	}{
		"None":          {nil, "", "usage: release image"},
		"Help":          {[]string{"--help"}, "", "usage: release image"},
		"HelpOfCommand": {[]string{"image", "-h"}, "", "usage: release image"},
		"Unknown":       {[]string{"push"}, `unknown command "push": it is image or notes`, ""},
		"Flag":          {[]string{"image", "-x"}, "-x", ""},
		"Argument":      {[]string{"image", "x"}, `no argument such as "x"`, ""},
		"Created":       {[]string{"image", "-created", ""}, "-created", ""},
		"Options":       {[]string{"image", "-tag", "x"}, "-image and -tag", ""},
		"Notes":         {[]string{"notes", "-root", dir, "v0.1.0"}, "", "- First.\n"},
		"NoVersion":     {[]string{"notes", "-root", dir}, "needs one VERSION", ""},
		"NoSection":     {[]string{"notes", "-root", dir, "v0.2.0"}, `no section for version "v0.2.0"`, ""},
		"NoChangelog":   {[]string{"notes", "-root", filepath.Join(dir, "x"), "v0.2.0"}, "CHANGELOG.md", ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			err := run(t.Context(), tc.args, &out)
			if tc.wantErr == "" && err != nil || tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)) {
				t.Errorf("got error %v, want %q", err, tc.wantErr)
			}
			if !strings.HasPrefix(out.String(), tc.wantOut) || tc.wantOut == "" && out.Len() > 0 {
				t.Errorf("got %q, want %q", out.String(), tc.wantOut)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("the error has more than one line: %v", err)
			}
		})
	}
}
