package ctl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// format is how a command prints what it found.
type format string

// The formats. Text is for people and may change with any release; JSON and YAML
// have the same fields and only gain more.
const (
	formatText format = "text"
	formatJSON format = "json"
	formatYAML format = "yaml"
)

// choice is the value of --output.
type choice struct {
	value   *format
	allowed []string
}

func (c choice) String() string { return string(*c.value) }

func (choice) Type() string { return "format" }

func (c choice) Set(s string) error {
	if !slices.Contains(c.allowed, s) {
		return fmt.Errorf("must be %s", orList(c.allowed))
	}
	*c.value = format(s)
	return nil
}

// addOutput gives a command the flag --output. A command whose only form is data
// has no text.
func (c *cli) addOutput(cmd *cobra.Command, preset format) {
	allowed := []string{string(formatText), string(formatJSON), string(formatYAML)}
	if preset != formatText {
		allowed = allowed[1:]
	}
	// Flags of all commands share the field, so each sets its preset anew.
	value := preset
	cmd.Flags().VarP(choice{&value, allowed}, "output", "o", "how to print: "+orList(allowed))
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c.output = value
		return run(cmd, args)
	}
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(allowed, cobra.ShellCompDirectiveNoFileComp))
}

// print prints what a command found.
func (c *cli) print(data any, text func(io.Writer)) error {
	if c.output == formatText {
		text(c.Out)
		return nil
	}
	out, err := encode(c.output, data)
	if err != nil {
		return err
	}
	_, err = c.Out.Write(out)
	return err
}

// encode writes data by its JSON fields.
func encode(f format, data any) ([]byte, error) {
	if f == formatYAML {
		return yaml.Marshal(data)
	}
	return encodeJSON(data, "  ")
}

func encodeJSON(data any, indent string) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	err := enc.Encode(data)
	return out.Bytes(), err
}

// compact is data on one line, for people.
func compact(data any) string {
	out, err := encodeJSON(data, "")
	if err != nil {
		return err.Error()
	}
	return oneLine(string(out))
}

// table prints rows in columns.
func table(w io.Writer, rows [][]string) {
	var out strings.Builder
	tw := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	for _, row := range rows {
		for _, cell := range row {
			// A cell is one line, or it would begin a row.
			fmt.Fprint(tw, oneLine(cell), "\t")
		}
		fmt.Fprintln(tw)
	}
	_ = tw.Flush() // a Builder takes everything
	for line := range strings.Lines(out.String()) {
		fmt.Fprintln(w, strings.TrimRight(line, " \n"))
	}
}

// note says on the side what a reader of the output should know.
func (c *cli) note(text string, args ...any) {
	fmt.Fprintf(c.Err, "note: "+text+"\n", args...)
}

// indent puts every line of text further to the right.
func indent(by, text string) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	return by + strings.Join(lines, "\n"+by) + "\n"
}
