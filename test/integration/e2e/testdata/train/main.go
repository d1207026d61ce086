// Command train is what the training containers of the tests run. It needs an
// admission count, prints it, works for a while, and takes its time to end when it
// is told to. What it did is in its termination message.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// terminated is the exit code of a program that SIGTERM ended. With 0 its Job would
// take the evicted pod for one that has done its work.
const terminated = 128 + int(syscall.SIGTERM)

func main() {
	code, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "train:", err)
		code = 1
	}
	os.Exit(code)
}

func run() (code int, err error) {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	work := flag.Duration("work", time.Second, "how long to work")
	first := flag.Duration("first", 0, "how long to work in the first start, if not as long as in others")
	linger := flag.Duration("linger", 0, "how long to go on after SIGTERM, unless there comes another")
	flag.Parse()
	begin := time.Now()
	count := os.Getenv("ADMISSION_COUNT")
	if count == "" {
		return 0, errors.New("started without an admission count")
	}
	fmt.Println("admission count", count)
	if count == "1" && *first > 0 {
		*work = *first
	}
	select {
	case <-time.After(*work):
	case <-term:
		code = terminated
		select {
		case <-time.After(*linger):
		case <-term:
		}
	}
	message, err := json.Marshal(map[string]any{"count": count, "begin": begin, "end": time.Now()})
	if err != nil {
		return 0, err
	}
	return code, os.WriteFile("/dev/termination-log", message, 0o600)
}
