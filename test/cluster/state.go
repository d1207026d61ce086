package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// State is what a cluster records in its directory, so that another process can
// look at it and end it.
type State struct {
	Dir        string           `json:"dir"`
	Kubeconfig string           `json:"kubeconfig"`
	Bin        string           `json:"bin"` // directory of the programs
	Begun      time.Time        `json:"begun"`
	Ready      bool             `json:"ready"` // false if the start did not finish
	Components []ComponentState `json:"components"`
	// Programs are those of Config.
	Programs map[string]string `json:"programs,omitempty"`
	// Node names the control group of the node's containers, "" without a node.
	Node string `json:"node,omitempty"`
}

// ComponentState is the recorded process of one component.
type ComponentState struct {
	Name     Component `json:"name"`
	Identity Identity  `json:"identity"`
}

const stateFile = "state.json"

// ReadState reads what the cluster in dir has recorded. The error is
// os.ErrNotExist if there is none.
func ReadState(dir string) (*State, error) {
	data, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, err
	}
	var s State
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("read the state of %s: %w", dir, err)
	}
	return &s, nil
}

// Dead lists the recorded components that do not run any more.
func (s *State) Dead() []ComponentState {
	var dead []ComponentState
	for _, comp := range s.Components {
		if !comp.Identity.Alive() {
			dead = append(dead, comp)
		}
	}
	return dead
}

// Tail returns the end of a component's log.
func (s *State) Tail(name Component) string { return tail(logPath(s.Dir, name), 0, tailLines) }

// StopDir ends the processes and the containers of the cluster in dir, and only
// those that it has recorded, and removes dir.
func StopDir(dir string) error {
	s, err := ReadState(dir)
	if err != nil {
		return err
	}
	recorded := map[Component]Identity{}
	for _, comp := range s.Components {
		recorded[comp.Name] = comp.Identity
	}
	var errs []error
	for _, wave := range stopWaves {
		var jobs []func() error
		for _, name := range wave {
			if id, ok := recorded[name]; ok {
				jobs = append(jobs, func() error { return wrap(name, "stop", id.stop()) })
			}
		}
		errs = append(errs, together(jobs...))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if s.Node != "" {
		if err := endNode(s.Node); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

// saveState records the current processes.
func (c *Cluster) saveState() error {
	c.saving.Lock()
	defer c.saving.Unlock()
	s := State{
		Dir: c.dir, Kubeconfig: c.Kubeconfig(), Bin: filepath.Dir(c.Bin("kubectl")),
		Begun: c.begin, Ready: c.isReady(), Programs: c.config.Programs,
	}
	if c.node != nil {
		s.Node = c.node.id
	}
	procs := c.processes()
	for _, name := range slices.Concat(Components(), []Component{PodRunner}, nodeOnly) {
		if p := procs[name]; p != nil {
			s.Components = append(s.Components, ComponentState{name, p.Identity})
		}
	}
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("record the cluster's processes: %w", err)
	}
	tmp := c.path(stateFile + ".tmp")
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return fmt.Errorf("record the cluster's processes: %w", err)
	}
	return os.Rename(tmp, c.path(stateFile))
}

func (c *Cluster) isReady() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ready
}
