package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dispatch-admission/dispatch-admission/test/cluster"
)

func TestMessagesSayWhatToDo(t *testing.T) {
	for name, tc := range map[string]struct {
		args    []string
		wantErr string // part of the error; "" for none
		wantOut string // part of what is printed
	}{
		"no command":      {nil, "", "usage: cluster COMMAND"},
		"help":            {[]string{"--help"}, "", "usage: cluster COMMAND"},
		"help of command": {[]string{"up", "-h"}, "", "usage: cluster COMMAND"},
		"unknown command": {[]string{"start"}, "it is one of up, down", ""},
		"unknown flag":    {[]string{"down", "-x"}, "the only flag is -name", ""},
		"flag of up":      {[]string{"up", "-x"}, "the flags are -name NAME, -programs IMAGE=DIRECTORY and -node", ""},
		"of up only":      {[]string{"down", "-programs", "a=/b"}, "the only flag is -name", ""},
		"node elsewhere":  {[]string{"down", "-node"}, "the only flag is -name", ""},
		"node and more":   {[]string{"up", "-node", "-programs", "a=/b"}, "Config.Node and Config.Programs", ""},
		"no directory":    {[]string{"up", "-programs", "a"}, "want IMAGE=DIRECTORY", ""},
		"relative":        {[]string{"up", "-programs", "a=bin"}, "give its absolute path", ""},
		"argument":        {[]string{"up", "me"}, "unexpected argument", ""},
		"bad name":        {[]string{"up", "-name", "../x"}, "lower-case letters", ""},
		"status of none":  {[]string{"status", "-name", "a"}, "start it with: up -name a", ""},
		"env of none":     {[]string{"env"}, "start it with: up", ""},
		"down of none":    {[]string{"down"}, "", `no cluster "default" is running`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(cluster.CacheEnv, t.TempDir())
			var out bytes.Buffer
			err := run(t.Context(), tc.args, &out, &out)
			switch {
			case tc.wantErr == "" && err != nil:
				t.Errorf("error %v, want none", err)
			case tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)):
				t.Errorf("error %v, want one with %q", err, tc.wantErr)
			case err != nil && strings.Contains(err.Error(), "\n"):
				t.Errorf("error of several lines: %q", err)
			case !strings.Contains(out.String(), tc.wantOut):
				t.Errorf("printed %q, want %q in it", out.String(), tc.wantOut)
			}
		})
	}
}

// recorded writes the state of a cluster named "default" whose one component is
// this test's process or, if dead, one that cannot exist.
func recorded(t *testing.T, ready, dead bool) {
	t.Helper()
	t.Setenv(cluster.CacheEnv, t.TempDir())
	dir := filepath.Join(os.Getenv(cluster.CacheEnv), "state", "default")
	if err := os.MkdirAll(filepath.Join(dir, "logs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "logs", "kueue.log"), []byte("last words\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := cluster.State{Dir: dir, Kubeconfig: "/k", Ready: ready}
	for name, lost := range map[cluster.Component]bool{cluster.Etcd: false, cluster.Kueue: dead} {
		id := cluster.Identity{PID: 1 << 30}
		if !lost {
			id = self(t)
		}
		s.Components = append(s.Components, cluster.ComponentState{Name: name, Identity: id})
	}
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "state.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func self(t *testing.T) cluster.Identity {
	t.Helper()
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	id, err := cluster.Identify(os.Getpid(), exe)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestUpAndStatusOfARecordedCluster(t *testing.T) {
	for name, tc := range map[string]struct {
		ready, dead bool
		command     string // and its flags
		wantErr     string
		wantOut     string
	}{
		"up with programs":   {true, false, "up -programs a=/b", "running without these programs", ""},
		"up again":           {true, false, "up", "", "export KUBECONFIG=/k\n"},
		"up when broken":     {true, true, "up", "kueue does not run", ""},
		"up when half done":  {false, false, "up", "run down", ""},
		"status":             {true, false, "status", "", "running"},
		"status when broken": {true, true, "status", "1 of 2 components are dead", "last words"},
		"env":                {true, false, "env", "", "export KUBECONFIG=/k\n"},
	} {
		t.Run(name, func(t *testing.T) {
			recorded(t, tc.ready, tc.dead)
			var out bytes.Buffer
			err := run(t.Context(), strings.Fields(tc.command), &out, &out)
			if (err == nil) != (tc.wantErr == "") || (err != nil && !strings.Contains(err.Error(), tc.wantErr)) {
				t.Errorf("error %v, want %q", err, tc.wantErr)
			}
			if !strings.Contains(out.String(), tc.wantOut) {
				t.Errorf("printed %q, want %q in it", out.String(), tc.wantOut)
			}
		})
	}
}
