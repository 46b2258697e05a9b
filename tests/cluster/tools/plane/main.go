// Command plane is what the cluster tests need of Kubernetes, in one binary:
//
//	plane apiserver|controller-manager|scheduler|kubectl [what that one takes]
//
// Under the name of one of the four it is that one.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"

	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

var programs = map[string]func() *cobra.Command{
	"apiserver":          apiserver.NewAPIServerCommand,
	"controller-manager": controllers.NewControllerManagerCommand,
	"scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubectl":            kubectl.NewDefaultKubectlCommand,
}

func main() {
	name, words := filepath.Base(os.Args[0]), os.Args[1:]
	if programs[name] == nil && len(words) > 0 {
		name, words = words[0], words[1:]
	}
	program := programs[name]
	if program == nil {
		fmt.Fprintln(os.Stderr, "plane: the first argument is apiserver, controller-manager, scheduler or kubectl")
		os.Exit(2)
	}
	os.Args = append([]string{name}, words...)
	os.Exit(cli.Run(program()))
}
