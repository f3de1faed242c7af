// A Terraform provider that has schemas and checks, and nothing behind them: enough for `terraform
// validate`, and for `terraform test` with mock providers, which ask the provider to check each value, also
// one that was made up. It takes the provider's name from its own, the schemas from one file that the
// environment names, in the form of `terraform providers schema -json`, and from another the patterns that
// arguments must match.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6/tf6server"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

const (
	schemaFile = "PROVIDER_SCHEMA"
	checksFile = "PROVIDER_CHECKS"
)

type attribute struct {
	Type                         json.RawMessage
	Required, Optional, Computed bool
}

type nested struct {
	Block    block
	MinItems int64 `json:"min_items"`
	MaxItems int64 `json:"max_items"`
}

type block struct {
	Attributes map[string]attribute
	BlockTypes map[string]nested `json:"block_types"`
}

type schema struct{ Block block }

type provider struct {
	ResourceSchemas   map[string]schema `json:"resource_schemas"`
	DataSourceSchemas map[string]schema `json:"data_source_schemas"`
}

// What is not implemented here Terraform does not ask for.
type server struct {
	tfprotov6.ProviderServer
	resources, dataSources map[string]*tfprotov6.Schema
	checks                 map[string]map[string]string
}

func main() {
	name := strings.Split(strings.TrimPrefix(filepath.Base(os.Args[0]), "terraform-provider-"), "_")[0]
	address := "registry.terraform.io/hashicorp/" + name
	text, err := os.ReadFile(os.Getenv(schemaFile))
	if err != nil {
		log.Fatalf("%s must name a file with schemas: %s", schemaFile, err)
	}
	var known struct {
		Schemas map[string]provider `json:"provider_schemas"`
	}
	if err := json.Unmarshal(text, &known); err != nil {
		log.Fatal(err)
	}
	of := known.Schemas[address]
	checks := map[string]map[string]string{}
	if text, err = os.ReadFile(os.Getenv(checksFile)); err != nil {
		log.Fatalf("%s must name a file with checks: %s", checksFile, err)
	}
	if err := json.Unmarshal(text, &checks); err != nil {
		log.Fatal(err)
	}
	err = tf6server.Serve(address, func() tfprotov6.ProviderServer {
		return &server{resources: convert(of.ResourceSchemas), dataSources: convert(of.DataSourceSchemas), checks: checks}
	})
	if err != nil {
		log.Fatal(err)
	}
}

func convert(schemas map[string]schema) map[string]*tfprotov6.Schema {
	converted := map[string]*tfprotov6.Schema{}
	for name, it := range schemas {
		converted[name] = &tfprotov6.Schema{Block: convertBlock(it.Block)}
	}
	return converted
}

func convertBlock(from block) *tfprotov6.SchemaBlock {
	to := &tfprotov6.SchemaBlock{}
	for name, it := range from.Attributes {
		kind, err := tftypes.ParseJSONType(it.Type)
		if err != nil {
			log.Fatalf("%s: %s", name, err)
		}
		to.Attributes = append(to.Attributes, &tfprotov6.SchemaAttribute{
			Name: name, Type: kind, Required: it.Required, Optional: it.Optional, Computed: it.Computed,
		})
	}
	for name, it := range from.BlockTypes {
		to.BlockTypes = append(to.BlockTypes, &tfprotov6.SchemaNestedBlock{
			TypeName: name, Block: convertBlock(it.Block), Nesting: tfprotov6.SchemaNestedBlockNestingModeList,
			MinItems: it.MinItems, MaxItems: it.MaxItems,
		})
	}
	return to
}

func (s *server) GetMetadata(context.Context, *tfprotov6.GetMetadataRequest) (*tfprotov6.GetMetadataResponse, error) {
	return &tfprotov6.GetMetadataResponse{}, nil
}

func (s *server) GetProviderSchema(context.Context, *tfprotov6.GetProviderSchemaRequest) (*tfprotov6.GetProviderSchemaResponse, error) {
	return &tfprotov6.GetProviderSchemaResponse{
		Provider:          &tfprotov6.Schema{Block: &tfprotov6.SchemaBlock{}},
		ResourceSchemas:   s.resources,
		DataSourceSchemas: s.dataSources,
	}, nil
}

func (s *server) ValidateProviderConfig(_ context.Context, asked *tfprotov6.ValidateProviderConfigRequest) (*tfprotov6.ValidateProviderConfigResponse, error) {
	return &tfprotov6.ValidateProviderConfigResponse{PreparedConfig: asked.Config}, nil
}

func (s *server) ConfigureProvider(context.Context, *tfprotov6.ConfigureProviderRequest) (*tfprotov6.ConfigureProviderResponse, error) {
	return &tfprotov6.ConfigureProviderResponse{}, nil
}

func (s *server) StopProvider(context.Context, *tfprotov6.StopProviderRequest) (*tfprotov6.StopProviderResponse, error) {
	return &tfprotov6.StopProviderResponse{}, nil
}

func (s *server) ValidateResourceConfig(_ context.Context, asked *tfprotov6.ValidateResourceConfigRequest) (*tfprotov6.ValidateResourceConfigResponse, error) {
	answer := &tfprotov6.ValidateResourceConfigResponse{}
	checks := s.checks[asked.TypeName]
	if len(checks) == 0 {
		return answer, nil
	}
	given, err := asked.Config.Unmarshal(s.resources[asked.TypeName].ValueType())
	if err != nil {
		return nil, err
	}
	values := map[string]tftypes.Value{}
	if err := given.As(&values); err != nil {
		return nil, err
	}
	for _, name := range sortedKeys(checks) {
		var text string
		value := values[name]
		if !value.IsKnown() || value.IsNull() || value.As(&text) != nil {
			continue
		}
		if !regexp.MustCompile(checks[name]).MatchString(text) {
			answer.Diagnostics = append(answer.Diagnostics, &tfprotov6.Diagnostic{
				Severity:  tfprotov6.DiagnosticSeverityError,
				Summary:   fmt.Sprintf("%q (%q) doesn't match regexp %q", name, text, checks[name]),
				Attribute: tftypes.NewAttributePath().WithAttributeName(name),
			})
		}
	}
	return answer, nil
}

func sortedKeys(checks map[string]string) []string {
	names := make([]string, 0, len(checks))
	for name := range checks {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func (s *server) ValidateDataResourceConfig(context.Context, *tfprotov6.ValidateDataResourceConfigRequest) (*tfprotov6.ValidateDataResourceConfigResponse, error) {
	return &tfprotov6.ValidateDataResourceConfigResponse{}, nil
}
