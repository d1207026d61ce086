// Command coredns is CoreDNS with the few plugins that the cluster's node needs:
// the names of Services, and whether it serves yet. The plugins that speak to
// clouds would pull in their clients.
package main

import (
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() { coremain.Run() }
